/* SPDX-License-Identifier: MIT */
#include "base/hash.h"
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <unistd.h>

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

void shunt_host_id(uint8_t out[SHUNT_HOST_BYTES], const void *key, size_t key_bytes)
{
	char text[64] = "";
	ssize_t n = 0;
	uint8_t mac[SHUNT_MAC_BYTES];
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		n = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	/* Without /proc use the host's name. */
	if (n <= 0 && gethostname(text, sizeof(text) - 1) == 0)
		n = (ssize_t)strnlen(text, sizeof(text) - 1);
	shunt_mac(mac, shunt_bytes(key, key_bytes), "shunt host", shunt_bytes(text, n > 0 ? (size_t)n : 0),
	    (struct shunt_bytes){ 0 });
	memcpy(out, mac, SHUNT_HOST_BYTES);
}
