/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_LINK_H
#define SHUNT_BASE_LINK_H
/* What joins two ranks, fastest first, and the rules by which SHUNT_LINKS and SHUNT_SIM_LINKS name links. */
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum shunt_link {
	SHUNT_LINK_SELF, /* one GPU */
	SHUNT_LINK_NVLINK,
	SHUNT_LINK_PEER,   /* the GPU's stores into the peer's memory over PCIe */
	SHUNT_LINK_SHARED, /* page-locked memory of the host */
	SHUNT_LINK_NET,
	SHUNT_LINKS
};
extern const char *const shunt_link_names[SHUNT_LINKS + 1]; /* "self", ..., NULL */

/* What is not a rule in such a text ("0-1:nvlink;2/3-*:none", docs/links.md): where it begins. NULL: all is right. */
const char *shunt_link_rules_check(const char *text);
/* The link of a pair: of the last rule that names it, in either order. NVLink if there is none. */
enum shunt_link shunt_link_rules_find(const char *text, int a, int b);

#ifdef __cplusplus
}
#endif
#endif
