/* SPDX-License-Identifier: MIT */
/* A program that is linked with a function of an NCCL which Shunt does not know. */
int ncclOfALaterVersion(void);

int main(void)
{
	return ncclOfALaterVersion();
}
