/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Planted faults (-Dplanted_faults=true): a site is a place in a kernel that orders memory, known by its file and line.
 * One of them can be weakened when a program starts, to show that ThreadSanitizer or a wrong value tells. Without that
 * option a site is nothing.
 *
 *   SIM_FAULT=FILE:LINE:KIND    weakens a site of src/; LINE may be FIRST-LAST: those between them
 *   SIM_FAULT_SITES=PATH        writes "FILE LINE FUNCTION KIND" at exit, a line for each site that ran
 */
#include <stdint.h>

/*
 *   Kind      Weakened
 *   acquire   the load is relaxed
 *   release   the store is relaxed
 *   older     the check of a flag or count accepts what was there before: of a count one less, of a flag any but 0
 *   fence     orders nothing
 *   barrier   waits for nobody
 *   wait      does not wait for a copy
 *   sum       the check of a sector looks at the flag's count alone
 */
enum sim_site_kind {
	SIM_SITE_ACQUIRE,
	SIM_SITE_RELEASE,
	SIM_SITE_OLDER,
	SIM_SITE_FENCE,
	SIM_SITE_BARRIER,
	SIM_SITE_WAIT,
	SIM_SITE_SUM,
	SIM_SITE_KINDS
};

#if defined(SHUNT_PLANTED_FAULTS)
/* As the default of a function's last argument: the place of the call. */
struct sim_site {
	const char *file, *function;
	uint32_t line;
};
#define SIM_SITE_HERE { __builtin_FILE(), __builtin_FUNCTION(), __builtin_LINE() }

extern "C" {
extern bool shunt_sim_sites_watched __attribute__((visibility("hidden"))); /* one of the variables is set */
bool shunt_sim_site_weakened(const struct sim_site *site, enum sim_site_kind kind);
}

static inline bool sim_weak(const struct sim_site &site, enum sim_site_kind kind)
{
	return __builtin_expect(shunt_sim_sites_watched, 0) && shunt_sim_site_weakened(&site, kind);
}
#else
struct sim_site {
};
#define SIM_SITE_HERE \
	{ \
	}

static inline bool sim_weak(const struct sim_site &, enum sim_site_kind) { return false; }
#endif
