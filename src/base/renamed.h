/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_RENAMED_H
#define SHUNT_BASE_RENAMED_H
/* Old names, so that a message about one says the new one. No old name works as an alias. */

enum shunt_renamed_kind { SHUNT_RENAMED_ALGORITHM, SHUNT_RENAMED_VARIABLE };

/* "it is called pairwise now", for a message; NULL: the name was never in use. Static storage. */
const char *shunt_renamed(enum shunt_renamed_kind kind, const char *name);
#endif
