/* SPDX-License-Identifier: MIT */
/* Proofs that one knows the communicator's id: keyed hashes over the other side's nonce and what is said. */
#include <stddef.h>
#include "transport/meet_wire.h"

void shunt_meet_prove_hello(uint8_t mac[SHUNT_MAC_BYTES], const struct shunt_id *id, const uint8_t nonce[MEET_NONCE],
    const struct meet_hello *hello)
{
	shunt_mac(mac, id, sizeof(*id), "shunt meet hello", nonce, MEET_NONCE, hello, offsetof(struct meet_hello, mac));
}

void shunt_meet_prove_welcome(uint8_t mac[SHUNT_MAC_BYTES], const struct shunt_id *id, const uint8_t nonce[MEET_NONCE],
    const struct meet_welcome *welcome)
{
	shunt_mac(
	    mac, id, sizeof(*id), "shunt meet welcome", nonce, MEET_NONCE, welcome, offsetof(struct meet_welcome, mac));
}
