/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_RENAMED_H
#define SHUNT_BASE_RENAMED_H
/*
 * Names that are not Shunt's, so that a message about one says what is. Old names of Shunt do not work as aliases;
 * variables of MSCCL++ may.
 */
#include <stddef.h>

enum shunt_renamed_kind { SHUNT_RENAMED_ALGORITHM, SHUNT_RENAMED_VARIABLE, SHUNT_RENAMED_FOREIGN };

/*
 * "it is called pairwise now", for a message; NULL: the table has no such name; "": a foreign variable that the log
 * obeys. Static storage.
 */
const char *shunt_renamed(enum shunt_renamed_kind kind, const char *name);
/* The i-th foreign variable; NULL: there are fewer. *now_p: as shunt_renamed(). */
const char *shunt_renamed_foreign(size_t i, const char **now_p);
#endif
