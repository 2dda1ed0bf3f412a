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

# install_text(SOURCE DESTINATION): SOURCE of the repository, with installed paths.
function(install_text SOURCE DESTINATION)
  file(READ "${source_dir}/${SOURCE}" text)
  string(REPLACE "/etc/foredraft" "${etc}/foredraft" text "${text}")
  string(REPLACE "/usr/bin/foredraft" "${prefix}/bin/foredraft" text "${text}")
  string(REPLACE "/usr/share/" "${prefix}/share/" text "${text}")
  string(REPLACE "deploy/configs/" "${prefix}/share/foredraft/configs/" text "${text}")
  string(REPLACE "deploy/models/" "${prefix}/share/foredraft/models/" text "${text}")
  get_filename_component(name "${SOURCE}" NAME)
  file(WRITE "${stage_dir}/${name}" "${text}")
  file(INSTALL "${stage_dir}/${name}" DESTINATION "${DESTINATION}")
endfunction()

foreach(unit foredraft.service foredraft-worker@.service)
  install_text(deploy/systemd/${unit} "${prefix}/lib/systemd/system")
endforeach()

file(GLOB configs RELATIVE "${source_dir}" "${source_dir}/deploy/configs/*.yaml"
  "${source_dir}/deploy/configs/*.json")
list(FILTER configs EXCLUDE REGEX "-shape|yardstick")  # of tests/bench
foreach(config ${configs})
  install_text(${config} "${prefix}/share/foredraft/configs")
endforeach()

# The operator's files: never overwritten.
foreach(name foredraft.yaml worker.env)
  if(EXISTS "$ENV{DESTDIR}${etc}/foredraft/${name}")
    message(STATUS "Kept: ${etc}/foredraft/${name}")
  else()
    install_text(deploy/systemd/${name} "${etc}/foredraft")
  endif()
endforeach()

# install_output(NAME DESTINATION ARGUMENTS...): what the binary prints, as the file NAME.
function(install_output NAME DESTINATION)
  file(MAKE_DIRECTORY "${stage_dir}")
  execute_process(COMMAND "${binary}" ${ARGN} OUTPUT_FILE "${stage_dir}/${NAME}" COMMAND_ERROR_IS_FATAL ANY)
  file(INSTALL "${stage_dir}/${NAME}" DESTINATION "${prefix}/${DESTINATION}")
endfunction()

install_output(foredraft.1 share/man/man1 manual)
install_output(foredraft share/bash-completion/completions completion bash)
install_output(_foredraft ${zsh_functions} completion zsh)
