/* SPDX-License-Identifier: MIT */
#include <math.h>
#include "chart_pen.h"

struct svg_pen {
	struct chart_pen pen;
	FILE *out;
};

static FILE *out_of(struct chart_pen *pen)
{
	return ((struct svg_pen *)pen)->out;
}

void chart_escape(const char *text, FILE *out)
{
	static const char *const names[256] = { ['<'] = "&lt;", ['>'] = "&gt;", ['&'] = "&amp;", ['"'] = "&quot;" };

	for (; *text; text++) {
		const char *name = names[(unsigned char)*text];

		if (name)
			fputs(name, out);
		else
			putc(*text, out);
	}
}

static void svg_line(struct chart_pen *pen, double x1, double y1, double x2, double y2, const char *color, double width)
{
	fprintf(out_of(pen),
	    "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%.1f\"%s/>\n", x1, y1,
	    x2, y2, color, fabs(width), width < 0 ? " stroke-dasharray=\"6 4\"" : "");
}

static void svg_dot(struct chart_pen *pen, double x, double y, const char *color, const char *text)
{
	fprintf(out_of(pen), "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>", x, y, color);
	chart_escape(text, out_of(pen));
	fputs("</title></circle>\n", out_of(pen));
}

static void svg_text(struct chart_pen *pen, double x, double y, enum chart_anchor anchor, double size,
    const char *color, const char *text)
{
	static const char *const anchors[] = { "start", "middle", "end" };

	fprintf(out_of(pen), "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%.0f\" fill=\"%s\">", x, y,
	    anchors[anchor], size, color);
	chart_escape(text, out_of(pen));
	fputs("</text>\n", out_of(pen));
}

/* By an element of its own, which cuts off what lies outside of it. */
static void svg_clip(struct chart_pen *pen, double x, double y, double width, double height)
{
	if (width > 0)
		fprintf(out_of(pen),
		    "<svg x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" viewBox=\"%.1f %.1f %.1f %.1f\">\n", x,
		    y, width, height, x, y, width, height);
	else
		fputs("</svg>\n", out_of(pen));
}

void chart_svg(const struct chart *c, FILE *out)
{
	static const struct chart_pen_ops ops = { svg_line, svg_dot, svg_text, svg_clip };
	struct svg_pen pen = { { &ops }, out };

	fprintf(out, "<svg viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" aria-label=\"", CHART_WIDTH,
	    CHART_HEIGHT, CHART_WIDTH, CHART_HEIGHT);
	chart_escape(c->title, out);
	fputs("\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n", out);
	chart_draw(c, &pen.pen);
	fputs("</svg>\n", out);
}
