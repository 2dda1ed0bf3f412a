# cmake -DSOURCE_DIR=... -DOUTPUT=... [-DCOMMIT=...] -P cmake/WriteCommit.cmake
#
# Writes OUTPUT, a C++ source with what `foredraft --version` reads: the commit of SOURCE_DIR's git checkout, with "-dirty" where
# tracked files differ from it. Without a checkout it is COMMIT, which may be empty. The file is left alone when its
# content stays, so that nothing is built again.
set(commit "${COMMIT}")
if(NOT commit AND EXISTS "${SOURCE_DIR}/.git")
  execute_process(
    COMMAND git -C "${SOURCE_DIR}" describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)  # no git on this machine, or a checkout of another user
    set(commit "")
  endif()
endif()
set(text "#include \"base/version.h\"\n\nnamespace foredraft {\n\nconst char kCommit[] = \"${commit}\";\n\n}  // namespace foredraft\n")
set(old "")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" old)
endif()
if(NOT old STREQUAL text)
  file(WRITE "${OUTPUT}" "${text}")
endif()
