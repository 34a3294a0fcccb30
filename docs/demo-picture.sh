#!/bin/sh
# demo-picture.sh: writes docs/img/demo.svg, the output of `make demo`. The demo prints everything at once, so it is a
# picture and no recording.
set -eu
cd "$(dirname "$0")/.."
make --silent build >&2
cargo build --quiet --locked -p gybe-demo
integration/as-root.sh target/debug/gybe-demo --plugin dist/gybe-cni >target/demo.txt
# Every character is 8 wide and every line 18 high, in whatever font the reader has.
awk '
    { gsub(/&/, "\\&amp;"); gsub(/</, "\\&lt;"); gsub(/>/, "\\&gt;"); text[NR] = $0 }
    END {
        printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 984 %d\" role=\"img\">\n", NR * 18 + 58
        print "<title>The output of make demo</title>"
        print "<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>"
        print "<g font-family=\"ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace\" " \
            "font-size=\"13\" fill=\"#c9d1d9\" xml:space=\"preserve\" style=\"white-space: pre\">"
        print "<text x=\"16\" y=\"28\" fill=\"#8b949e\">$ make demo</text>"
        for (n = 1; n <= NR; n++) if (text[n] != "") {
            width = length(text[n])
            # An escaped character is one character.
            width -= 4 * gsub(/&amp;/, "\\&amp;", text[n]) + 3 * gsub(/&[lg]t;/, "&", text[n])
            sub(/^ ok /, " <tspan fill=\"#3fb950\">ok</tspan> ", text[n])
            printf "<text x=\"16\" y=\"%d\" textLength=\"%d\" lengthAdjust=\"spacingAndGlyphs\">%s</text>\n", \
                n * 18 + 46, width * 8, text[n]
        }
        print "</g>\n</svg>"
    }' target/demo.txt >docs/img/demo.svg
