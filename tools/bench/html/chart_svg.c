/* SPDX-License-Identifier: MIT */
#include <math.h>
#include "tools/bench/html/chart_canvas.h"

struct svg_canvas {
	struct chart_canvas canvas;
	FILE *out;
};

static FILE *canvas_file(struct chart_canvas *canvas)
{
	return ((struct svg_canvas *)canvas)->out;
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

static void svg_line(
    struct chart_canvas *canvas, double x1, double y1, double x2, double y2, const char *color, double width)
{
	fprintf(canvas_file(canvas),
	    "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%.1f\"%s/>\n", x1, y1,
	    x2, y2, color, fabs(width), width < 0 ? " stroke-dasharray=\"6 4\"" : "");
}

static void svg_dot(struct chart_canvas *canvas, double x, double y, const char *color, const char *text)
{
	fprintf(canvas_file(canvas), "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>", x, y, color);
	chart_escape(text, canvas_file(canvas));
	fputs("</title></circle>\n", canvas_file(canvas));
}

static void svg_text(struct chart_canvas *canvas, double x, double y, enum chart_anchor anchor, double size,
    const char *color, const char *text)
{
	static const char *const anchors[] = { "start", "middle", "end" };

	fprintf(canvas_file(canvas), "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%.0f\" fill=\"%s\">",
	    x, y, anchors[anchor], size, color);
	chart_escape(text, canvas_file(canvas));
	fputs("</text>\n", canvas_file(canvas));
}

/* A nested <svg> element clips to its own rectangle. */
static void svg_clip(struct chart_canvas *canvas, double x, double y, double width, double height)
{
	if (width > 0)
		fprintf(canvas_file(canvas),
		    "<svg x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" viewBox=\"%.1f %.1f %.1f %.1f\">\n", x,
		    y, width, height, x, y, width, height);
	else
		fputs("</svg>\n", canvas_file(canvas));
}

void chart_svg(const struct chart *c, FILE *out)
{
	static const struct chart_canvas_ops ops = { svg_line, svg_dot, svg_text, svg_clip };
	struct svg_canvas canvas = { { &ops }, out };

	fprintf(out, "<svg viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" aria-label=\"", CHART_WIDTH,
	    CHART_HEIGHT, CHART_WIDTH, CHART_HEIGHT);
	chart_escape(c->title, out);
	fputs("\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n", out);
	chart_draw(c, &canvas.canvas);
	fputs("</svg>\n", out);
}
