# Finds the libraries that Megatron is built on. Used by the build, and installed: megatronConfig.cmake looks for the
# same ones in the same way, so that what the static libraries link to exists in the consumer too.

# megatron_find_library(<target> HEADER <file> NAMES <names>... [HINTS <folders>...])
# An imported target for a library that brings no CMake package of its own. Sets found in the caller.
function(megatron_find_library target)
  cmake_parse_arguments(ARG "" "HEADER" "NAMES;HINTS" ${ARGN})
  string(MAKE_C_IDENTIFIER ${target} id)
  find_path(${id}_INCLUDE_DIR ${ARG_HEADER} HINTS ${ARG_HINTS} PATH_SUFFIXES include)
  find_library(${id}_LIBRARY NAMES ${ARG_NAMES} HINTS ${ARG_HINTS} PATH_SUFFIXES lib lib64)
  mark_as_advanced(${id}_INCLUDE_DIR ${id}_LIBRARY)
  if(${id}_INCLUDE_DIR AND ${id}_LIBRARY)
    if(NOT TARGET ${target})
      add_library(${target} UNKNOWN IMPORTED GLOBAL)
      set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${${id}_LIBRARY}
                                                 INTERFACE_INCLUDE_DIRECTORIES ${${id}_INCLUDE_DIR})
    endif()
    set(found TRUE PARENT_SCOPE)
  else()
    set(found FALSE PARENT_SCOPE)
  endif()
endfunction()

# megatron_version_in(<variable> <header> <macro>...): the version that a header's macros spell.
function(megatron_version_in variable header)
  set(parts)
  file(READ ${header} text)
  foreach(macro IN LISTS ARGN)
    if(text MATCHES "#[ \t]*define[ \t]+${macro}[ \t]+\"?([0-9.]+)")
      list(APPEND parts ${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(JOIN parts "." version)
  set(${variable} "${version}" PARENT_SCOPE)
endfunction()

# The libraries without which there is no build; <find> is find_package or find_dependency.
macro(megatron_find_required find)
  foreach(library IN ITEMS Threads fmt yaml-cpp)
    cmake_language(CALL ${find} ${library} REQUIRED)
  endforeach()
  if(NOT TARGET yaml-cpp::yaml-cpp)  # the name that version 0.8 brings
    add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
  endif()
endmacro()

# One macro per optional library: sets found and version. (Macros: find_package must act in the caller's scope.)
macro(megatron_find_ONEDNN)  # not by its package: Debian's asks for OpenCL's headers, which only its GPU part needs
  megatron_find_library(DNNL::dnnl HEADER oneapi/dnnl/dnnl_version.h NAMES dnnl)
  if(found)
    megatron_version_in(version ${DNNL__dnnl_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h DNNL_VERSION_MAJOR
                        DNNL_VERSION_MINOR DNNL_VERSION_PATCH)
  endif()
endmacro()

macro(megatron_find_OPENBLAS)
  megatron_find_library(OpenBLAS::OpenBLAS HEADER cblas.h NAMES openblas HINTS
                        /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread
                        /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread)
endmacro()

macro(megatron_find_MPI)
  find_package(MPI QUIET COMPONENTS CXX)
  set(found ${MPI_CXX_FOUND})
  set(version ${MPI_CXX_VERSION})
endmacro()

macro(megatron_find_BENCHMARK)
  find_package(benchmark QUIET CONFIG)
  set(found ${benchmark_FOUND})
  set(version ${benchmark_VERSION})
endmacro()

macro(megatron_find_ZLIB)
  megatron_find_library(ZLIB::ZLIB HEADER zlib.h NAMES z)
  if(found)
    megatron_version_in(version ${ZLIB__ZLIB_INCLUDE_DIR}/zlib.h ZLIB_VERSION)
  endif()
endmacro()

macro(megatron_find_ZSTD)
  megatron_find_library(zstd::zstd HEADER zstd.h NAMES zstd)
  if(found)
    megatron_version_in(version ${zstd__zstd_INCLUDE_DIR}/zstd.h ZSTD_VERSION_MAJOR ZSTD_VERSION_MINOR
                        ZSTD_VERSION_RELEASE)
  endif()
endmacro()

macro(megatron_find_LZMA)
  megatron_find_library(LibLZMA::LibLZMA HEADER lzma.h NAMES lzma)
endmacro()

macro(megatron_find_PNG)
  megatron_find_library(PNG::PNG HEADER png.h NAMES png png16)
  if(found)
    megatron_version_in(version ${PNG__PNG_INCLUDE_DIR}/png.h PNG_LIBPNG_VER_STRING)
  endif()
endmacro()

macro(megatron_find_JPEG)
  megatron_find_library(JPEG::JPEG HEADER jpeglib.h NAMES jpeg)
endmacro()

# Headers only.
macro(megatron_find_BEAST)
  find_path(boost_beast_INCLUDE_DIR boost/beast/http.hpp)
  mark_as_advanced(boost_beast_INCLUDE_DIR)
  set(found FALSE)
  if(boost_beast_INCLUDE_DIR)
    set(found TRUE)
    if(NOT TARGET boost_beast::boost_beast)
      add_library(boost_beast::boost_beast INTERFACE IMPORTED GLOBAL)
      set_target_properties(boost_beast::boost_beast PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${boost_beast_INCLUDE_DIR})
    endif()
  endif()
endmacro()

macro(megatron_find_CUDA)
  find_package(CUDAToolkit 12 QUIET)
  set(found ${CUDAToolkit_FOUND})
  set(version ${CUDAToolkit_VERSION})
endmacro()

macro(megatron_find_CUDNN)
  megatron_find_library(cudnn::cudnn HEADER cudnn_version.h NAMES cudnn HINTS ${CUDAToolkit_TARGET_DIR}
                        ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_LIBRARY_DIR})
  if(found)
    megatron_version_in(version ${cudnn__cudnn_INCLUDE_DIR}/cudnn_version.h CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
  endif()
endmacro()

# Headers only.
macro(megatron_find_CUDNN_FRONTEND)
  find_path(cudnn_frontend_INCLUDE_DIR cudnn_frontend.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(cudnn_frontend_INCLUDE_DIR)
  set(found FALSE)
  if(cudnn_frontend_INCLUDE_DIR)
    set(found TRUE)
    if(NOT TARGET cudnn_frontend::cudnn_frontend)
      add_library(cudnn_frontend::cudnn_frontend INTERFACE IMPORTED GLOBAL)
      set_target_properties(cudnn_frontend::cudnn_frontend PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
                                                                      ${cudnn_frontend_INCLUDE_DIR})
    endif()
  endif()
endmacro()

macro(megatron_find_NCCL)
  megatron_find_library(NCCL::nccl HEADER nccl.h NAMES nccl HINTS ${CUDAToolkit_TARGET_DIR}
                        ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_LIBRARY_DIR})
  if(found)
    megatron_version_in(version ${NCCL__nccl_INCLUDE_DIR}/nccl.h NCCL_MAJOR NCCL_MINOR NCCL_PATCH)
  endif()
endmacro()

# Each optional library with the target by which code links to it.
set(MEGATRON_OPTIONAL_LIBRARIES ONEDNN=DNNL::dnnl OPENBLAS=OpenBLAS::OpenBLAS MPI=MPI::MPI_CXX
    ZLIB=ZLIB::ZLIB ZSTD=zstd::zstd LZMA=LibLZMA::LibLZMA PNG=PNG::PNG JPEG=JPEG::JPEG BEAST=boost_beast::boost_beast CUDA=CUDA::cudart_static CUDNN=cudnn::cudnn CUDNN_FRONTEND=cudnn_frontend::cudnn_frontend NCCL=NCCL::nccl)
