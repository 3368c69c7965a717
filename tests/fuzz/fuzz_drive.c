/* SPDX-License-Identifier: MIT */
/*
 * fuzz_drive TIMES DIRECTORY: changes the directory's texts (plans, or tuning files) at random, a few changes each, and
 * loads what comes out. For machines without libFuzzer. It makes the same texts every time, and others with another
 * FUZZ_SEED.
 */
#include <dirent.h>
#include <inttypes.h>
#include <string.h>
#include "tests/support/fuzz_try.h"

#define MAX_SEEDS 64
#define MAX_TEXT ((size_t)1 << 16)

static char *seeds[MAX_SEEDS];
static size_t lengths[MAX_SEEDS], nseeds;
static uint64_t random_state = 0x9e3779b97f4a7c15;

static size_t below(size_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return n ? (size_t)(random_state >> 11) % n : 0;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Replaces text[at, at + old) by new text. */
static void splice(char *text, size_t *n_p, size_t at, size_t old, const char *new, size_t bytes)
{
	if (*n_p - old + bytes > MAX_TEXT)
		return;
	memmove(text + at + bytes, text + at + old, *n_p - at - old);
	memcpy(text + at, new, bytes);
	*n_p = *n_p - old + bytes;
}

/* A number somewhere, made another. */
static void change_number(char *text, size_t *n_p)
{
	static const char *const numbers[] = { "0", "1", "2", "3", "7", "-1", "16", "255", "256", "1023", "1024",
		"65536", "2147483647", "2147483648", "4294967295", "4294967296", "1099511627776", "1099511627777",
		"9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "1e9",
		"0.5", "null", "[]", "{}", "\"i\"", "true" };
	size_t at = below(*n_p), old = 0, i = below(sizeof(numbers) / sizeof(numbers[0]));

	while (at < *n_p && !is_digit(text[at]))
		at++;
	while (at + old < *n_p && is_digit(text[at + old]))
		old++;
	if (old)
		splice(text, n_p, at, old, numbers[i], strlen(numbers[i]));
}

/* A piece between brackets or braces, which balance. */
static bool piece(const char *text, size_t n, size_t *at_p, size_t *bytes_p)
{
	size_t at = below(n), depth = 0;

	while (at < n && text[at] != '{' && text[at] != '[')
		at++;
	for (size_t i = at; i < n; i++) {
		depth += text[i] == '{' || text[i] == '[';
		depth -= text[i] == '}' || text[i] == ']';
		if (!depth) {
			*at_p = at;
			*bytes_p = i + 1 - at;
			return true;
		}
	}
	return false;
}

static void change_piece(char *text, size_t *n_p)
{
	static char copy[MAX_TEXT];
	size_t at, bytes, from, more, s = below(nseeds);

	if (!piece(text, *n_p, &at, &bytes))
		return;
	switch (below(4)) {
	case 0: /* away, with the comma that follows */
		splice(text, n_p, at, bytes + (at + bytes < *n_p && text[at + bytes] == ','), "", 0);
		return;
	case 1: /* twice */
		memcpy(copy, text + at, bytes);
		copy[bytes] = ',';
		if (bytes + 1 < MAX_TEXT)
			splice(text, n_p, at, 0, copy, bytes + 1);
		return;
	default: /* another text's, or its own */
		if (piece(seeds[s], lengths[s], &from, &more))
			splice(text, n_p, at, bytes, seeds[s] + from, more);
	}
}

/* A word in quotes, made that of another place. */
static void change_word(char *text, size_t *n_p)
{
	size_t s = below(nseeds), from = below(lengths[s]), at = below(*n_p), n = 1, old = 1;
	const char *seed = seeds[s];

	while (from < lengths[s] && seed[from] != '"')
		from++;
	while (from + n < lengths[s] && seed[from + n] != '"')
		n++;
	while (at < *n_p && text[at] != '"')
		at++;
	while (at + old < *n_p && text[at + old] != '"')
		old++;
	if (from + n < lengths[s] && at + old < *n_p)
		splice(text, n_p, at, old, seed + from, n);
}

static void change(char *text, size_t *n_p)
{
	size_t at = below(*n_p);

	if (!*n_p)
		return;
	switch (below(10)) {
	case 0:
		text[at] = (char)below(256);
		return;
	case 1:
		*n_p = at;
		return;
	case 2:
		splice(text, n_p, at, below(*n_p - at < 32 ? *n_p - at : 32), "", 0);
		return;
	case 3:
	case 4:
		change_piece(text, n_p);
		return;
	case 5:
	case 6:
		change_word(text, n_p);
		return;
	default:
		change_number(text, n_p);
	}
}

static void read_seeds(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *entry;

	while (d && nseeds < MAX_SEEDS && (entry = readdir(d))) {
		char path[1024];
		FILE *f;

		if (!strstr(entry->d_name, ".json"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		f = fopen(path, "rb");
		if (!f)
			continue;
		seeds[nseeds] = malloc(MAX_TEXT);
		lengths[nseeds] = fread(seeds[nseeds], 1, MAX_TEXT, f);
		nseeds++;
		fclose(f);
	}
	if (d)
		closedir(d);
	/* In an order that the directory does not decide. */
	for (size_t i = 0; i < nseeds; i++)
		for (size_t j = i + 1; j < nseeds; j++) {
			size_t n = lengths[i] < lengths[j] ? lengths[i] : lengths[j];
			int order = memcmp(seeds[i], seeds[j], n);

			if (order > 0 || (!order && lengths[i] > lengths[j])) {
				char *s = seeds[i];
				size_t l = lengths[i];

				seeds[i] = seeds[j];
				lengths[i] = lengths[j];
				seeds[j] = s;
				lengths[j] = l;
			}
		}
}

int main(int argc, char **argv)
{
	static char text[MAX_TEXT + 64];
	const char *seed = getenv("FUZZ_SEED");
	unsigned n = 0, loaded = 0, times;

	if (argc != 3) {
		fprintf(stderr, "usage: fuzz_drive TIMES DIRECTORY\n");
		return 2;
	}
	read_seeds(argv[2]);
	times = (unsigned)atoi(argv[1]);
	if (seed)
		random_state += strtoull(seed, NULL, 0);
	for (; nseeds && n < times; n++) {
		size_t s = below(nseeds), bytes = lengths[s], changes = 1 + below(4);

		memcpy(text, seeds[s], bytes);
		while (changes--)
			change(text, &bytes);
		loaded += fuzz_try(text, bytes) == 0;
	}
	printf("%zu texts changed %u times: %u loaded, %u refused\n", nseeds, n, loaded, n - loaded);
	for (size_t s = 0; s < nseeds; s++)
		free(seeds[s]);
	return n && loaded && loaded < n ? 0 : 1;
}
