/* SPDX-License-Identifier: MIT */
/* Proofs of knowledge of the communicator's id: keyed hashes of the other side's nonce and the message. */
#include <stddef.h>
#include "transport/rendezvous/wire.h"

void shunt_rendezvous_mac_hello(uint8_t mac[SHUNT_MAC_BYTES], const struct shunt_id *id,
    const uint8_t nonce[RDZV_NONCE], const struct rdzv_hello *hello)
{
	shunt_mac(mac, id, sizeof(*id), "shunt rdzv hello", nonce, RDZV_NONCE, hello, offsetof(struct rdzv_hello, mac));
}

void shunt_rendezvous_mac_welcome(uint8_t mac[SHUNT_MAC_BYTES], const struct shunt_id *id,
    const uint8_t nonce[RDZV_NONCE], const struct rdzv_welcome *welcome)
{
	shunt_mac(
	    mac, id, sizeof(*id), "shunt rdzv welcome", nonce, RDZV_NONCE, welcome, offsetof(struct rdzv_welcome, mac));
}
