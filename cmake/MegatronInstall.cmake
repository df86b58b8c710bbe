# `cmake --install`: the program, the layers with their headers, and a package for find_package(megatron).
include(CMakePackageConfigHelpers)

add_library(megatron_all INTERFACE)
set(MEGATRON_BUILT_LAYERS)
foreach(layer IN LISTS MEGATRON_LAYERS)
  if(TARGET megatron_${layer})
    list(APPEND MEGATRON_BUILT_LAYERS ${layer})
    target_link_libraries(megatron_all INTERFACE megatron_${layer})
  endif()
endforeach()
megatron_export(megatron_all megatron)

megatron_linked(MEGATRON_USED_LIBRARIES)
list(JOIN MEGATRON_BUILT_LAYERS " " MEGATRON_BUILT_LAYERS)
list(JOIN MEGATRON_USED_LIBRARIES " " MEGATRON_USED_LIBRARIES)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/megatron)
configure_package_config_file(cmake/megatronConfig.cmake.in ${PROJECT_BINARY_DIR}/generated/megatronConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/generated/megatronConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/generated/megatronConfig.cmake
              ${PROJECT_BINARY_DIR}/generated/megatronConfigVersion.cmake cmake/MegatronFind.cmake DESTINATION ${package})
install(EXPORT megatronTargets NAMESPACE megatron:: DESTINATION ${package})
install(DIRECTORY src/megatron DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
