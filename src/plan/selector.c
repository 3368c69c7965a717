/* SPDX-License-Identifier: MIT */
/* Selectors, which communicators keep after the program has set another one. */
#include <stdlib.h>
#include "plan/plan_registry_priv.h"

struct shunt_selector *shunt_selector_create(shunt_plan_selector *function, void *arg)
{
	struct shunt_selector *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->function = function;
	s->arg = arg;
	s->refs = 1;
	shunt_callback_add(&s->callback, (void *)function, arg);
	return s;
}

struct shunt_selector *shunt_selector_ref(struct shunt_selector *s)
{
	if (s)
		s->refs++;
	return s;
}

void shunt_selector_unref(struct shunt_selector *s)
{
	if (!s || --s->refs)
		return;
	shunt_callback_remove(&s->callback);
	free(s);
}

bool shunt_selector_ask(struct shunt_selector *s, const struct shunt_plan_request *request, const char **answer_p)
{
	struct shunt_callback_inside here;
	bool live = shunt_callback_enter(&s->callback, &here);

	if (live)
		*answer_p = s->function(s->arg, request);
	shunt_callback_leave(&here);
	return live;
}
