# Runs at installation, after cmake/Install.cmake set source_dir, stage_dir and binary. The sources name the paths of an
# installation under /usr; another prefix is put in their place.
get_filename_component(prefix "${CMAKE_INSTALL_PREFIX}" ABSOLUTE)
if(prefix STREQUAL "/usr")
  set(etc /etc)
  set(zsh_functions share/zsh/vendor-completions)  # where Debian's zsh looks for those of packages
else()
  set(etc "${prefix}/etc")
  set(zsh_functions share/zsh/site-functions)
endif()

# Names of the sources that an installation does not have: a document's link to one becomes its text. tests/check_paths
# reads this list.
set(not_installed DEVELOPMENT.md deploy/container deploy/models/abacus-eagle3 deploy/models/abacus-v4 engine tests)
list(JOIN not_installed "|" not_installed)

# install_text(SOURCE DESTINATION): SOURCE of the repository, with installed paths.
function(install_text SOURCE DESTINATION)
  file(READ "${source_dir}/${SOURCE}" text)
  string(REGEX REPLACE "\\[([^]\n]*)\\]\\((\\.\\./)*(${not_installed})([/#][^)\n]*)?\\)" "\\1" text "${text}")
  string(REGEX REPLACE "\\]\\((\\.\\./)*proto/" "](${prefix}/share/foredraft/proto/" text "${text}")
  string(REPLACE "/etc/foredraft" "${etc}/foredraft" text "${text}")
  string(REPLACE "/usr/bin/foredraft" "${prefix}/bin/foredraft" text "${text}")
  string(REPLACE "/usr/share/" "${prefix}/share/" text "${text}")
  foreach(folder bench configs gateway grafana k8s models prometheus)
    string(REGEX REPLACE "(\\.\\./)?deploy/${folder}([/)`, ])" "${prefix}/share/foredraft/${folder}\\2" text "${text}")
  endforeach()
  string(REGEX REPLACE "(\\.\\./)?deploy/systemd/" "${prefix}/lib/systemd/system/" text "${text}")
  get_filename_component(name "${SOURCE}" NAME)
  file(WRITE "${stage_dir}/${name}" "${text}")
  file(INSTALL "${stage_dir}/${name}" DESTINATION "${DESTINATION}")
endfunction()

foreach(unit foredraft.service foredraft-worker@.service foredraft-gateway.service)
  install_text(deploy/systemd/${unit} "${prefix}/lib/systemd/system")
endforeach()

file(GLOB configs RELATIVE "${source_dir}" "${source_dir}/deploy/configs/*.yaml"
  "${source_dir}/deploy/configs/*.json")
list(FILTER configs EXCLUDE REGEX "yardstick")  # of tests/bench
foreach(config ${configs})
  install_text(${config} "${prefix}/share/foredraft/configs")
endforeach()

# The operator's files: never overwritten.
foreach(name foredraft.yaml worker.env gateway.env)
  if(EXISTS "$ENV{DESTDIR}${etc}/foredraft/${name}")
    message(STATUS "Kept: ${etc}/foredraft/${name}")
  else()
    install_text(deploy/systemd/${name} "${etc}/foredraft")
  endif()
endforeach()

# Keys and tokens, which the units load as credentials.
file(MAKE_DIRECTORY "$ENV{DESTDIR}${etc}/foredraft/credentials")
file(CHMOD "$ENV{DESTDIR}${etc}/foredraft/credentials" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)

# Debian's form names the licence's text, which every Debian has.
if(prefix STREQUAL "/usr")
  file(INSTALL "${source_dir}/deploy/debian/copyright" DESTINATION "${prefix}/share/doc/foredraft")
else()
  file(INSTALL "${source_dir}/LICENSE" DESTINATION "${prefix}/share/doc/foredraft" RENAME copyright)
endif()

file(GLOB documents RELATIVE "${source_dir}" "${source_dir}/docs/*.md")
foreach(document ${documents})
  install_text(${document} "${prefix}/share/doc/foredraft/docs")
endforeach()
foreach(document README.md SECURITY.md CHANGELOG.md)
  install_text(${document} "${prefix}/share/doc/foredraft")
endforeach()
install_text(docs/examples/README.md "${prefix}/share/doc/foredraft/docs/examples")

# install_gzip(NAME FOLDER): compresses a staged file, without its name and time, as Debian wants pages and changelogs.
function(install_gzip NAME FOLDER)
  execute_process(COMMAND gzip -9 --no-name --force --keep "${stage_dir}/${NAME}" COMMAND_ERROR_IS_FATAL ANY)
  file(INSTALL "${stage_dir}/${NAME}.gz" DESTINATION "${prefix}/${FOLDER}")
endfunction()

# install_output(NAME DESTINATION ARGUMENTS...): what the binary prints, as the file NAME.
function(install_output NAME DESTINATION)
  file(MAKE_DIRECTORY "${stage_dir}")
  execute_process(COMMAND "${binary}" ${ARGN} OUTPUT_FILE "${stage_dir}/${NAME}" COMMAND_ERROR_IS_FATAL ANY)
  file(INSTALL "${stage_dir}/${NAME}" DESTINATION "${prefix}/${DESTINATION}")
endfunction()

file(MAKE_DIRECTORY "${stage_dir}")
execute_process(COMMAND "${binary}" manual OUTPUT_FILE "${stage_dir}/foredraft.1" COMMAND_ERROR_IS_FATAL ANY)
install_gzip(foredraft.1 share/man/man1)
if(prefix STREQUAL "/usr")
  configure_file("${source_dir}/deploy/debian/changelog" "${stage_dir}/changelog" COPYONLY)
  install_gzip(changelog share/doc/foredraft)
endif()
install_output(foredraft share/bash-completion/completions completion bash)
install_output(_foredraft ${zsh_functions} completion zsh)
install_output(foredraft.fish share/fish/vendor_completions.d completion fish)
