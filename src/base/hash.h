/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_BASE_HASH_H
#define SHUNT_BASE_HASH_H
/* Random bytes, keyed hashes and the identity of this host. Pure functions, any thread. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHUNT_MAC_BYTES 32
#define SHUNT_HOST_BYTES 16

/*
 * Keyed hash (BLAKE2b) of label, a and b, each with its length; key of 16 to 64 bytes. label keeps one use apart from
 * another.
 */
void shunt_mac(uint8_t out[SHUNT_MAC_BYTES], const void *key, size_t key_bytes, const char *label, const void *a,
    size_t a_bytes, const void *b, size_t b_bytes);
/* Takes the same time wherever the two differ. */
bool shunt_mac_equal(const uint8_t a[SHUNT_MAC_BYTES], const uint8_t b[SHUNT_MAC_BYTES]);

/* Not for secrets: FNV-1a, to be chained through seed (start with 0). */
uint64_t shunt_fnv1a(uint64_t seed, const void *data, size_t bytes);

/*
 * Equal in all processes of one booted host, containers and network namespaces included; different on any other. Keyed,
 * so that it tells a stranger nothing.
 */
void shunt_host_id(uint8_t out[SHUNT_HOST_BYTES], const void *key, size_t key_bytes);
#endif
