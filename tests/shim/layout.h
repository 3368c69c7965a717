/* SPDX-License-Identifier: MIT */
#pragma once
/* The facts of layout.def as each side sees them. */
struct fact {
	const char *name;
	long value;
};
extern const struct fact system_facts[], our_facts[]; /* end with a NULL name */
extern const int system_version;

#define CONSTANT(expression) { #expression, (long)(expression) },
#define FIELD(type, member) \
	{ "offset of " #type "." #member, (long)offsetof(type, member) }, \
	    { "size of " #type "." #member, (long)sizeof(((type *)0)->member) },
