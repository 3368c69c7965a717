/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Where this installation has its parts. A part looks from its own file upwards, so an installation may be moved,
 * staged (DESTDIR) or reached by links; a build tree and a wheel are found in the same way. The Python package has no
 * table: an installation has links in the package where a wheel has the files (python/meson.build).
 */
#include <limits.h>
#include <stdbool.h>

enum shunt_place {
	SHUNT_PLACE_LIBRARY,   /* the folder of libshunt.so */
	SHUNT_PLACE_LINKS,     /* the folder of libnccl.so, for the loader */
	SHUNT_PLACE_LINKING,   /* the folder of libnccl.so, for the linker */
	SHUNT_PLACE_HEADERS,   /* the folder of shunt/shunt.h */
	SHUNT_PLACE_CMAKE,     /* the folder of shuntConfig.cmake */
	SHUNT_PLACE_PKGCONFIG, /* the folder of shunt.pc */
	SHUNT_PLACE_PLANS,     /* default plans and examples */
	SHUNT_PLACE_TUNING,    /* ready tuning files */
	SHUNT_PLACE_PYTHON,    /* the package libshunt */
	SHUNT_PLACE_RAS,       /* the folder of ncclras, for PATH */
	SHUNT_PLACE_NCCL_EP,   /* the folder of libnccl_ep.so.0, for the loader */
	SHUNT_PLACE_COUNT
};

/* The file that this code is in, a library or the program, without links. False: the system does not tell. */
bool shunt_place_own(char path[PATH_MAX]);
/* from: the file to look from; NULL: shunt_place_own(). False: this installation has no such part. */
bool shunt_place_find(enum shunt_place what, const char *from, char path[PATH_MAX]);
