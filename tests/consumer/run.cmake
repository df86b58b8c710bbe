# Installs the build into a folder of its own, then configures, builds and runs the project against it.
set(work ${BUILD}/consumer)
set(flags "")
if(FLAGS)
  set(flags "-fsanitize=${FLAGS}")
endif()
file(REMOVE_RECURSE ${work})
foreach(step
    "--install;${BUILD};--prefix;${work}/prefix"
    "-S;${PROJECT};-B;${work}/build;-G;${GENERATOR};-DCMAKE_PREFIX_PATH=${work}/prefix;-DCMAKE_CXX_COMPILER=${COMPILER};-DCMAKE_CXX_FLAGS=${flags}"
    "--build;${work}/build;--target;check")
  execute_process(COMMAND ${CMAKE_COMMAND} ${step} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "cmake ${step}:\n${output}")
  endif()
endforeach()
