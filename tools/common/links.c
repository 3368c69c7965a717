/* SPDX-License-Identifier: MIT */
#include "tools/common/links.h"
#include <stdio.h>
#include <string.h>
#include "topology/trust.h"

int tool_links_find(const struct shunt_gpu_ops *gpu, struct shunt_gpu_info info[TOOL_LINKS_MOST])
{
	int n = 0;

	if (gpu->open(NULL) || gpu->device_count(&n))
		return -1;
	n = n < TOOL_LINKS_MOST ? n : TOOL_LINKS_MOST;
	for (int i = 0; i < n; i++)
		if (gpu->device_info(i, &info[i]))
			return -1;
	return n;
}

void tool_links_show(const struct shunt_gpu_ops *gpu, const struct shunt_gpu_info *info, int n, int from, char *text,
    size_t bytes, enum shunt_link *slowest_p, char reason[SHUNT_LINK_WHY])
{
	*text = '\0';
	*slowest_p = SHUNT_LINK_SELF;
	for (int k = 0; k < n; k++) {
		char why[SHUNT_LINK_WHY], refused[SHUNT_TRUST_WHY];
		enum shunt_link link;
		enum shunt_trust trust;

		if (from == k)
			continue;
		link = shunt_link_claim(gpu, from, &info[k], from, k, n, why);
		trust = shunt_trust_find(&info[from], &info[k], link, refused);
		snprintf(
		    text + strlen(text), bytes - strlen(text), "%s %d %s", *text ? "," : "", k, shunt_link_names[link]);
		if (link > SHUNT_LINK_NVLINK)
			snprintf(text + strlen(text), bytes - strlen(text), " (%s%s)",
			    shunt_distance_names[shunt_link_distance(gpu, from, &info[k], link)],
			    trust == SHUNT_TRUST_BAD      ? ", refused by its self-test" :
			        trust == SHUNT_TRUST_GOOD ? ", tested" :
			                                    "");
		if (link > *slowest_p) {
			*slowest_p = link;
			memcpy(reason, why, sizeof(why));
		}
	}
}
