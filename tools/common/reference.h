/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Reference results of collectives in plain C, computed by other means than the kernels': number formats through
 * double, one loop per element. Sums run in rank order 0 ... n-1, in fp32 for 8- and 16-bit floats, so the result is
 * exact to the bit.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/coll.h"

#define REF_MAX_RANKS 64
/*
 * The same over several hosts: hosts[r] is rank r's. Sums of each host's ranks, rounded to the type, are added up in
 * the order of the hosts' lowest ranks. NULL: one host.
 */
void ref_allreduce_over(void *out, const void *const *in, const int *hosts, int nranks, size_t count,
    enum shunt_dtype dtype, enum shunt_redop op, const void *const *scalars);
/* in[r]: rank r's input; scalars[r]: rank r's factor in dtype (PREMUL only). */
void ref_allreduce(void *out, const void *const *in, int nranks, size_t count, enum shunt_dtype dtype,
    enum shunt_redop op, const void *const *scalars);
/* Random elements: any bits for integers, moderate numbers of both signs for floats. */
void ref_fill(void *buf, size_t count, enum shunt_dtype dtype, uint64_t *seed);
/* Bitwise, but any NaN equals any other. Returns the number of different elements; *first_p: the first of them. */
size_t ref_compare(const void *a, const void *b, size_t count, enum shunt_dtype dtype, size_t *first_p);
double ref_to_double(const void *element, enum shunt_dtype dtype);
void ref_from_double(void *element, enum shunt_dtype dtype, double v);
uint64_t ref_random(uint64_t *seed);
