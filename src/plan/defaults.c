/* SPDX-License-Identifier: MIT */
/* Where the default plans of this installation lie. */
#include <stdio.h>
#include "base/config.h"
#include "base/place.h"
#include "plan/plan_registry_priv.h"

bool shunt_plan_defaults_dir(char *dir, size_t bytes)
{
	const char *named = shunt_config()->default_plans;
	char path[PATH_MAX];

	if (!*named && !shunt_place_find(SHUNT_PLACE_PLANS, NULL, path))
		return false;
	return (size_t)snprintf(dir, bytes, "%s", *named ? named : path) < bytes;
}
