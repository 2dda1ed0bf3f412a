# What `cmake --install` puts where, and the Debian package that CPack makes of it:
#
#   cmake --build --preset cpu --target foredraft && cmake --install build/cpu --prefix /usr/local --strip
#   cmake --build --preset cpu --target foredraft && cpack --preset cpu       # build/cpu/foredraft_VERSION_ARCH.deb
#
# An installation needs the target foredraft alone, not the tests. The package's dependencies come from dpkg-shlibdeps
# (deploy/packages.txt: dpkg-dev, file); CheckPackage.cmake refuses a package that has none.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(share share/foredraft)

install(TARGETS foredraft RUNTIME DESTINATION bin)
foreach(proto foredraft/v1/generation foredraft/v1/admin google/rpc/error_details vllm/grpc/engine/vllm_engine
    smg/grpc/common/common)
  get_filename_component(folder ${proto} DIRECTORY)
  install(FILES proto/${proto}.proto DESTINATION ${share}/proto/${folder})
endforeach()
foreach(model abacus abacus-tools)
  set(folder deploy/models/${model})
  install(FILES ${folder}/README.md ${folder}/config.json ${folder}/generation_config.json ${folder}/model.safetensors
                ${folder}/tokenizer.json ${folder}/tokenizer_config.json
          DESTINATION ${share}/models/${model})
endforeach()
install(FILES deploy/prometheus/prometheus.yml deploy/prometheus/rules.yml DESTINATION ${share}/prometheus)
install(FILES deploy/grafana/foredraft.json DESTINATION ${share}/grafana)
install(FILES deploy/k8s/endpoint-picker.yaml deploy/k8s/foredraft-1x8.yaml deploy/k8s/foredraft-2x8.yaml
              deploy/k8s/operations-1x8.yaml deploy/k8s/prometheus-rule.yaml
        DESTINATION ${share}/k8s)
install(FILES deploy/bench/r1-1k-2k.jsonl DESTINATION ${share}/bench)
install(PROGRAMS deploy/gateway/run DESTINATION ${share}/gateway)
install(FILES deploy/gateway/requirements.txt DESTINATION ${share}/gateway)
install(DIRECTORY docs/examples DESTINATION share/doc/foredraft/docs FILES_MATCHING PATTERN "*.py" PATTERN "*.cc"
        PATTERN "CMakeLists.txt")

# Files that name installed paths, documents among them, the manual page and the completions: these depend on the prefix, which is known only
# when the script runs.
install(CODE "
  set(source_dir \"${CMAKE_SOURCE_DIR}\")
  set(stage_dir \"${CMAKE_BINARY_DIR}/install\")
  set(binary \"$<TARGET_FILE:foredraft>\")")
install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/InstallFiles.cmake)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME foredraft)
set(CPACK_PACKAGE_CONTACT "foredraft maintainers <maintainers@foredraft.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "inference server with speculative drafts for DeepSeek-V3-family models")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"foredraft serves DeepSeek-V3-family models over gRPC and drafts ahead with the
model's own Multi-Token Prediction modules. The tokens do not depend on drafts,
batch, ranks, graphs or cache. This package has the CPU backend and abacus, a
small model to try it with.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS python3-venv)  # of the gateway
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
foreach(control conffiles postinst prerm postrm)
  list(APPEND CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/deploy/debian/${control})
endforeach()
set(CPACK_POST_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/CheckPackage.cmake)
include(CPack)
