/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Options of a command: a table with a row for each. The parser, the text of --help and the messages about wrong values
 * come from it. Every command has -h, --help without a row.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum option_type {
	OPTION_END,     /* the last row */
	OPTION_TITLE,   /* no option: `help` is a heading of the text */
	OPTION_FLAG,    /* bool: becomes true, or false with `clear` */
	OPTION_NUMBER,  /* int or unsigned, low to high */
	OPTION_NUMBERS, /* struct option_list of numbers from 1 to high, multiples of `step` */
	OPTION_SIZE,    /* uint64_t, low to high; "64K" */
	OPTION_MINUTES, /* double above 0 */
	OPTION_TEXT,    /* const char *, of low to high letters; high 0: of any number */
	OPTION_WORD,    /* int or enum: index of the word */
	OPTION_WORDS,   /* unsigned: bit set of the words' indices, comma separated; "all": high */
	OPTION_CALL,    /* the result of `call` */
};

enum { OPTION_MAX_LIST = 8 };
struct option_list {
	unsigned at[OPTION_MAX_LIST];
	int n;
};

struct option_row {
	const char *name; /* the long name */
	char letter;      /* 0: none */
	enum option_type type;
	const char *value; /* the value's name in the text; NULL: it takes none */
	size_t at;         /* offset of the field in the command's struct */
	uint64_t low, high;
	unsigned step;                 /* 0: 1 */
	const char *const *names;      /* the words; ends with NULL. Of OPTION_CALL: what a shell completes */
	const char *(*name_at)(int i); /* instead of names: one of the words; NULL: there are no more */
	int (*find)(
	    const char *text); /* of words that have other names, too: index, or -1 and a reason by tool_refuse() */
	bool clear;
	uint64_t without; /* the number of an OPTION_SIZE whose value is left out; 0: it must not be */
	size_t given;     /* offset of a bool that becomes true when the option is given; 0: none */
	/* 0 or a negative errno, with a reason by tool_refuse(); text is NULL without a value */
	int (*call)(void *opts, const struct option_row *row, const char *text);
	const char *help; /* NULL: the option is not in the text */
};

struct option_table {
	const char *usage;             /* the text's begin: usage and meaning */
	const struct option_row *rows; /* end with OPTION_END; NULL: none */
	const char *notes;             /* the text's end */
	bool stops;                    /* options end at the first argument that is none */
};

/*
 * Applies the options to opts. Other arguments begin at *first_p, and argv is reordered for that; NULL: there may be
 * none. -1: go on; else the exit status after a message or the text of --help.
 */
int options_parse(const struct option_table *table, void *opts, int argc, char **argv, int *first_p);
/* The i-th word that the option takes, or that a shell completes; NULL: there are no more, as i goes up from 0. */
const char *options_word(const struct option_row *row, int i);
/* "  left", and the text from a column on, wrapped at the width of a terminal; elsewhere a line. */
void options_text_print(const char *left, const char *text, int column, FILE *out);
/* True: the line of n bytes ends for want of room, in the middle of a paragraph of a help text. */
bool options_line_goes_on(const char *text, size_t n);
/* The text of --help. */
void options_help_print(const struct option_table *table, FILE *out);
