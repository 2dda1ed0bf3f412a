# How every target of the project is built: one standard, one set of warnings, one include root.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# A newer gRPC lies in CMAKE_PREFIX_PATH (docs/operations.md section 8). Its protobuf needs abseil's libraries, which only its
# own package names: CMake's module for protobuf would find the headers and leave those out.
set(CMAKE_FIND_PACKAGE_PREFER_CONFIG ON)
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(yaml-cpp REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)  # its name since 0.8; the other one goes with 0.10
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()

# -ffp-contract=off: a product and a sum are fused only where a kernel says so. Otherwise the compiler may fuse
# them in one copy of a loop and not in another, and the same row would get different bits.
# -pthread: as what links Threads::Threads, so that all units can read one precompiled header.
# -Wno-missing-field-initializers: optional parameters are left out where an op is called, and GCC warns of that even
# where the member has a default constructor. The tables of ops miss none: they follow from kernels/ops/list.inc.
add_compile_options(
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-missing-field-initializers;-ffp-contract=off;-pthread>")
# -O2 -g1: line numbers in a crash, at half the link time and disk of -g.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
include_directories(${CMAKE_SOURCE_DIR})

# Units of tests are compiled as fast as may be, except where their own loops are long. What they call is optimised.
set(FOREDRAFT_TEST_OPTIONS -O0)
# lld (Debian: lld) links in a fifth of GNU ld's time, and the tests are some 160 executables.
find_program(FOREDRAFT_LLD ld.lld)

if(FOREDRAFT_SANITIZER)
  # -O1: a third less time to compile than -O2, in which a full run spends most of its time. The kernels keep their -O3.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
  # Under sanitizers GCC's uninitialised warnings have false positives, as its manual says (here in std::regex).
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  add_compile_options(-fsanitize=${FOREDRAFT_SANITIZER} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${FOREDRAFT_SANITIZER})
  # With every expectation checked for undefined behaviour, units of tests would be half of a full run's time. What they
  # call is checked.
  list(APPEND FOREDRAFT_TEST_OPTIONS -fno-sanitize=undefined)
  set(FOREDRAFT_LABELS_LEFT_OUT full plain)  # as in tests/run
  if(FOREDRAFT_SANITIZER STREQUAL thread)
    list(APPEND FOREDRAFT_LABELS_LEFT_OUT sequential)
  endif()
endif()

# Headers that most units include take a quarter of the time in which a unit compiles, so they are compiled once. A unit still
# includes what it uses: a build without them shows it. With a launcher they are left out, because ccache keeps no
# unit that reads one.
if(CMAKE_CXX_COMPILER_LAUNCHER)
  set(precompiled_headers OFF)
else()
  set(precompiled_headers ON)
endif()
option(FOREDRAFT_PRECOMPILED_HEADERS "Compile headers that most units include once" ${precompiled_headers})

# foredraft_precompiled(OWNER LIBRARIES lib ... HEADERS <h> ...): headers for targets with the options of the executable or
# library OWNER.
function(foredraft_precompiled OWNER)
  cmake_parse_arguments(ARG "" "" "LIBRARIES;HEADERS" ${ARGN})
  target_link_libraries(${OWNER} PRIVATE ${ARG_LIBRARIES})
  if(FOREDRAFT_PRECOMPILED_HEADERS)
    target_precompile_headers(${OWNER} PRIVATE ${ARG_HEADERS})
  endif()
endfunction()

function(foredraft_reuse_precompiled NAME OWNER)
  if(FOREDRAFT_PRECOMPILED_HEADERS)
    target_precompile_headers(${NAME} REUSE_FROM ${OWNER})
  endif()
endfunction()

# foredraft_optimised(NAME): -O2 whatever the build type, and no headers that were compiled with another level: GCC 12 may
# end with an internal error where the two differ.
function(foredraft_optimised NAME)
  target_compile_options(${NAME} PRIVATE -O2)
  set_target_properties(${NAME} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
endfunction()

set(FOREDRAFT_COMMON_HEADERS
    <algorithm> <chrono> <functional> <memory> <optional> <span> <string> <vector>
    <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_format.h>)
set(FOREDRAFT_NO_CODE ${CMAKE_BINARY_DIR}/no_code.cc)
file(CONFIGURE OUTPUT ${FOREDRAFT_NO_CODE} CONTENT "")
add_library(foredraft_headers STATIC EXCLUDE_FROM_ALL ${FOREDRAFT_NO_CODE})
foredraft_precompiled(foredraft_headers
  LIBRARIES absl::statusor absl::strings absl::str_format
  HEADERS ${FOREDRAFT_COMMON_HEADERS})

# foredraft_library(NAME SRCS a.cc ... DEPS other ...): DEPS are the room's arrows (docs/architecture.md).
function(foredraft_library NAME)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  if(ARG_SRCS)
    add_library(${NAME} STATIC ${ARG_SRCS})
    target_link_libraries(${NAME} PUBLIC ${ARG_DEPS})
    foredraft_reuse_precompiled(${NAME} foredraft_headers)
  else()
    add_library(${NAME} INTERFACE)
    target_link_libraries(${NAME} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

# foredraft_test_headers(NAME option ...): a precompiled header for tests with these options.
function(foredraft_test_headers NAME)
  add_executable(${NAME} EXCLUDE_FROM_ALL ${FOREDRAFT_NO_CODE})
  target_compile_options(${NAME} PRIVATE ${ARGN})
  foredraft_precompiled(${NAME}
    LIBRARIES absl::statusor absl::strings absl::str_format GTest::gmock GTest::gtest GTest::gtest_main
    HEADERS ${FOREDRAFT_COMMON_HEADERS} <gmock/gmock.h> <gtest/gtest.h>)
endfunction()

# foredraft_timeout(seconds TEST ...): sanitizers may take eight times as long.
function(foredraft_timeout SECONDS)
  if(FOREDRAFT_SANITIZER)
    math(EXPR SECONDS "${SECONDS} * 8")
  endif()
  set_tests_properties(${ARGN} PROPERTIES TIMEOUT ${SECONDS})
endfunction()

# foredraft_test(NAME SRCS a_test.cc ... DEPS other ... [TIMEOUT s] [LABELS label] [LONG_LOOPS]): a GoogleTest binary, one ctest
# entry. The working directory is the source root, so tests open tests/golden/... by relative path. LONG_LOOPS: its own code
# is optimised. Labels:
#   full        in tests/run --full only
#   sequential  not with ThreadSanitizer: no threads, or those of same_tokens_test over another model or request
#   plain       with no sanitizer: long, and other tests run the same code; or of glibc's malloc, which sanitizers replace
# A test that its label leaves out of tests/run --full is built only when its target is named.
function(foredraft_test NAME)
  cmake_parse_arguments(ARG "LONG_LOOPS" "TIMEOUT;LABELS" "SRCS;DEPS;ARGS" ${ARGN})
  find_package(GTest REQUIRED)
  add_executable(${NAME} ${ARG_SRCS})
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  if(FOREDRAFT_LLD)
    target_link_options(${NAME} PRIVATE -fuse-ld=lld)
  endif()
  if(ARG_LONG_LOOPS OR FOREDRAFT_LONG_LOOPS)
    foredraft_reuse_precompiled(${NAME} foredraft_loop_test_headers)
  else()
    target_compile_options(${NAME} PRIVATE ${FOREDRAFT_TEST_OPTIONS})
    foredraft_reuse_precompiled(${NAME} foredraft_test_headers)
  endif()
  add_test(NAME ${NAME} COMMAND ${NAME} ${ARG_ARGS} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  foredraft_timeout(${ARG_TIMEOUT} ${NAME})
  if(ARG_LABELS)
    set_tests_properties(${NAME} PROPERTIES LABELS "${ARG_LABELS}")
  endif()
  if(ARG_LABELS IN_LIST FOREDRAFT_LABELS_LEFT_OUT)
    set_target_properties(${NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# foredraft_full_tier(TEST seconds): the same binary once more for tests/run --full, with FOREDRAFT_FULL set: it then
# runs the whole matrix, or longer.
function(foredraft_full_tier TEST TIMEOUT)
  add_test(NAME ${TEST}_full COMMAND ${TEST} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${TEST}_full PROPERTIES LABELS full TIMEOUT ${TIMEOUT} ENVIRONMENT FOREDRAFT_FULL=1)
endfunction()
