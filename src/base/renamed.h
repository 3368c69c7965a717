/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Names that are not Shunt's, so that a message about one says what is. Old names of Shunt do not work as aliases;
 * variables of MSCCL++ may. What is NCCL's alone stands here, too.
 */
#include <stddef.h>

enum shunt_renamed_kind {
	SHUNT_RENAMED_ALGORITHM,
	SHUNT_RENAMED_VARIABLE,
	SHUNT_RENAMED_FOREIGN,  /* variables of MSCCL++ */
	SHUNT_RENAMED_NCCL_ONLY /* variables of NCCL that Shunt does not read; the text is what holds for Shunt's calls
	                         */
};

/*
 * "it is called pairwise now", for a message; NULL: the table has no such name; "": a foreign variable that the log
 * obeys. Static storage.
 */
const char *shunt_renamed(enum shunt_renamed_kind kind, const char *name);
/* The i-th name of a kind; NULL: there are fewer. It may end in *, for all that begin so. *now_p: as shunt_renamed().
 */
const char *shunt_renamed_row(enum shunt_renamed_kind kind, size_t i, const char **now_p);
