/* SPDX-License-Identifier: MIT */
/* Writes kargs_bytes.h: how many bytes the machine that builds gives to what kernels and the host share. */
#include <stdio.h>
#include "kernels/kernel_list.h"

#define SAY(type) \
	printf("_Static_assert(sizeof(struct " #type ") == %zu, \"as in the kernels\");\n", sizeof(struct type));
#define ROW(shape, source, args, ...) SAY(args)

int main(void)
{
	SHUNT_SHAPE_LIST(ROW, )
	SAY(shunt_ctrl)
	SAY(shunt_net_words)
	SAY(shunt_net_move)
	SAY(shunt_ep_ctrl)
	return 0;
}
