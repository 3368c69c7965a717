/* SPDX-License-Identifier: MIT */
#include "base/id.h"

#include <string.h>

#include "base/hash.h"

struct shunt_id shunt_id_derive(const void *secret, size_t bytes, const char *tag, uint64_t a, uint64_t b)
{
	uint8_t mac[SHUNT_MAC_BYTES], key[32];
	uint64_t numbers[2] = { a, b };
	struct shunt_id id;

	/* The secret may be of any length: hash it to a key first. */
	static const uint8_t zero[32];
	shunt_mac(key, shunt_bytes(zero, sizeof(zero)), "shunt id secret", shunt_bytes(secret, bytes),
	    (struct shunt_bytes){ 0 });
	shunt_mac(
	    mac, shunt_bytes(key, sizeof(key)), tag, shunt_bytes(numbers, sizeof(numbers)), (struct shunt_bytes){ 0 });
	memcpy(id.b, mac, sizeof(id.b));
	return id;
}
