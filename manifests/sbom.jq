# From `cargo metadata` to a CycloneDX 1.5 document about the programs. $crates: lines of NAME@VERSION, the crates that
# they contain; $rust and $musl: versions of the standard library and of the C library. Without serial number and time,
# so that two builds write the same bytes.
def reference: "pkg:cargo/\(.name)@\(.version)";
# Old crates separate alternatives by a slash.
def licences: [{ expression: (.license | gsub(" */ *"; " OR ")) }];
def is_own: .source == null;
def linked($name; $version; $product; $licence): {
    type: "library", "bom-ref": "\($name)@\($version)", name: $name, version: $version,
    cpe: "cpe:2.3:a:\($product):\($version):*:*:*:*:*:*:*", licenses: [{ expression: $licence }]
};

($crates | split("\n")) as $names
| [.packages[] | select("\(.name)@\(.version)" | IN($names[]))] as $shipped
| ($shipped | map({ (.id): reference }) | add) as $references
| (first($shipped[] | select(.name == "gybe-installer")) | .version) as $version
| [
    linked("rust-std"; $rust; "rust-lang:rust"; "MIT OR Apache-2.0"),
    linked("musl"; $musl; "musl-libc:musl"; "MIT")
] as $runtime
| {
    bomFormat: "CycloneDX",
    specVersion: "1.5",
    version: 1,
    metadata: { component: {
        type: "application", "bom-ref": "gybe@\($version)", name: "gybe", version: $version,
        licenses: [{ expression: "Apache-2.0" }]
    } },
    components: ($runtime + [$shipped[] | {
        type: "library", "bom-ref": reference, name: .name, version: .version, licenses: licences
    } + if is_own then {} else { purl: reference } end
      + if .repository then { externalReferences: [{ type: "vcs", url: .repository }] } else {} end
    ] | sort_by(."bom-ref")),
    dependencies: ([
        {
            ref: "gybe@\($version)",
            dependsOn: ([$shipped[] | select(is_own) | reference] + [$runtime[]."bom-ref"] | sort)
        },
        (.resolve.nodes[] | select($references[.id]) | {
            ref: $references[.id],
            dependsOn: [.deps[] | select(any(.dep_kinds[]; .kind == null)) | $references[.pkg] // empty] | unique
        })
    ] | sort_by(.ref))
}
