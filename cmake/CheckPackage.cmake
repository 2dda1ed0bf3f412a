# CPack runs this when the package is made. Without dpkg-shlibdeps (Debian: dpkg-dev), or where it finds nothing, CPack
# makes a package without Depends in silence, which installs and cannot start.
foreach(package ${CPACK_PACKAGE_FILES})
  execute_process(COMMAND dpkg-deb --field "${package}" Depends OUTPUT_VARIABLE depends COMMAND_ERROR_IS_FATAL ANY)
  if(NOT depends MATCHES "libgrpc")
    file(REMOVE "${package}")
    string(STRIP "${depends}" depends)
    message(FATAL_ERROR "${package}: Depends: '${depends}', expected the packages of its libraries; "
                        "removed. dpkg-shlibdeps finds them: deploy/install-packages build")
  endif()
endforeach()
