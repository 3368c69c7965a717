/* SPDX-License-Identifier: MIT */
/*
 * Our declarations, compared with those of layout_system.c. Compiled with the system's version for the sections of
 * layout.def.
 */
#include <stdio.h>
#include <string.h>
#include "shim/nccl/abi.h"
#include "tests/shim/layout.h"

const struct fact our_facts[] = {
#include "tests/shim/layout.def"
	{ 0 }
};

int main(void)
{
	int wrong = 0, n = 0;

	for (; system_facts[n].name && our_facts[n].name; n++)
		if (strcmp(system_facts[n].name, our_facts[n].name) || system_facts[n].value != our_facts[n].value) {
			printf("%s: %ld in nccl.h, %ld here\n", our_facts[n].name, system_facts[n].value,
			    our_facts[n].value);
			wrong++;
		}
	if (system_facts[n].name || our_facts[n].name)
		wrong++;
	printf("nccl.h %d: %d facts, %d wrong\n", system_version, n, wrong);
	return wrong || n < 50;
}
