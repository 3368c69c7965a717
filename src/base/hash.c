/* SPDX-License-Identifier: MIT */
#include "base/hash.h"
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <unistd.h>

static void add(crypto_generichash_state *state, const void *data, size_t bytes)
{
	uint64_t n = bytes;

	/* The length keeps (ab, c) and (a, bc) apart. */
	crypto_generichash_update(state, (const uint8_t *)&n, sizeof(n));
	if (bytes)
		crypto_generichash_update(state, data, bytes);
}

void shunt_mac(uint8_t out[SHUNT_MAC_BYTES], const void *key, size_t key_bytes, const char *label, const void *a,
    size_t a_bytes, const void *b, size_t b_bytes)
{
	crypto_generichash_state state;

	crypto_generichash_init(&state, key, key_bytes, SHUNT_MAC_BYTES);
	add(&state, label, strlen(label));
	add(&state, a, a_bytes);
	add(&state, b, b_bytes);
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
	shunt_mac(mac, key, key_bytes, "shunt host", text, n > 0 ? (size_t)n : 0, NULL, 0);
	memcpy(out, mac, SHUNT_HOST_BYTES);
}
