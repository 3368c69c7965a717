/* SPDX-License-Identifier: MIT */
#pragma once
/* Hashes, and the identity of this host. Any thread. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHUNT_MAC_BYTES 32
#define SHUNT_HOST_BYTES 16

struct shunt_bytes {
	const void *at;
	size_t n;
};
static inline struct shunt_bytes shunt_bytes(const void *at, size_t n)
{
	return (struct shunt_bytes){ at, n };
}

/*
 * Keyed hash (BLAKE2b) of label, a and b, each with its length. The key has 16 to 64 bytes. Each use has its own label.
 * a and b may be empty.
 */
void shunt_mac(uint8_t out[SHUNT_MAC_BYTES], struct shunt_bytes key, const char *label, struct shunt_bytes a,
    struct shunt_bytes b);
/* Compares in constant time. */
bool shunt_mac_equal(const uint8_t a[SHUNT_MAC_BYTES], const uint8_t b[SHUNT_MAC_BYTES]);

/* FNV-1a, not for secrets. seed chains calls; 0 begins a chain. */
uint64_t shunt_fnv1a(uint64_t seed, const void *data, size_t bytes);
