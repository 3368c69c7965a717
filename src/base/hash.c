/* SPDX-License-Identifier: MIT */
#include "base/hash.h"
#include <sodium.h>
#include <string.h>

static void add(crypto_generichash_state *state, struct shunt_bytes data)
{
	uint64_t n = data.n;

	/* The length keeps (ab, c) and (a, bc) apart. */
	crypto_generichash_update(state, (const uint8_t *)&n, sizeof(n));
	if (data.n)
		crypto_generichash_update(state, data.at, data.n);
}

void shunt_mac(
    uint8_t out[SHUNT_MAC_BYTES], struct shunt_bytes key, const char *label, struct shunt_bytes a, struct shunt_bytes b)
{
	crypto_generichash_state state;

	crypto_generichash_init(&state, key.at, key.n, SHUNT_MAC_BYTES);
	add(&state, shunt_bytes(label, strlen(label)));
	add(&state, a);
	add(&state, b);
	crypto_generichash_final(&state, out, SHUNT_MAC_BYTES);
}

bool shunt_mac_equal(const uint8_t a[SHUNT_MAC_BYTES], const uint8_t b[SHUNT_MAC_BYTES])
{
	return sodium_memcmp(a, b, SHUNT_MAC_BYTES) == 0;
}

uint64_t shunt_fnv1a(uint64_t seed, const void *data, size_t bytes)
{
	const uint8_t *p = data;
	uint64_t h = seed ? seed : UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < bytes; i++)
		h = (h ^ p[i]) * UINT64_C(0x100000001b3);
	return h;
}
