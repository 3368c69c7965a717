# SPDX-License-Identifier: MIT
# find_package(shunt) gives the target shunt::shunt: the functions of shunt/shunt.h and shunt/device.h. A program that
# calls NCCL and is to have Shunt for it links shunt::nccl instead, whose run path finds Shunt's libnccl.so.2; a wheel
# has no such file, so that `shunt run` must start the program.
# shunt_PRELOAD is the file for LD_PRELOAD. Everything is found from this file, so an installation may be moved.
if(TARGET shunt::shunt)
  return()
endif()
get_filename_component(_shunt_lib "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
foreach(_shunt_up IN ITEMS .. ../.. ../../..)
  if(NOT _shunt_include AND EXISTS "${_shunt_lib}/${_shunt_up}/include/shunt/shunt.h")
    get_filename_component(_shunt_include "${_shunt_lib}/${_shunt_up}/include" ABSOLUTE)
  endif()
endforeach()
foreach(_shunt_file IN ITEMS libshunt.so libshunt_api.so.0)
  if(NOT _shunt_include OR NOT EXISTS "${_shunt_lib}/${_shunt_file}")
    set(shunt_FOUND FALSE)
    set(shunt_NOT_FOUND_MESSAGE "${_shunt_lib} has no ${_shunt_file}, or no headers stand beside it: install Shunt as a whole")
    return()
  endif()
endforeach()
set(shunt_PRELOAD "${_shunt_lib}/libshunt.so")
add_library(shunt::shunt SHARED IMPORTED)
set_target_properties(shunt::shunt PROPERTIES IMPORTED_LOCATION "${_shunt_lib}/libshunt_api.so.0"
  IMPORTED_SONAME libshunt_api.so.0 INTERFACE_INCLUDE_DIRECTORIES "${_shunt_include}")
set(_shunt_nccl "${_shunt_lib}/shunt/libnccl.so.2")
if(NOT EXISTS "${_shunt_nccl}")
  set(_shunt_nccl "${shunt_PRELOAD}")
endif()
add_library(shunt::nccl SHARED IMPORTED)
set_target_properties(shunt::nccl PROPERTIES IMPORTED_LOCATION "${_shunt_nccl}"
  IMPORTED_SONAME libnccl.so.2 INTERFACE_INCLUDE_DIRECTORIES "${_shunt_include}")
unset(_shunt_lib)
unset(_shunt_nccl)
unset(_shunt_include)
