//! A network namespace for one rule set, and listing it with nft.

use gybe_netfilter::netns::Netns;
use std::process::Command;

/// Runs `work` in a network namespace of its own.
pub(crate) fn in_new_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let netns = Netns::create().unwrap_or_else(|error| {
        panic!("{error}; as root, or:\n  integration/as-root.sh cargo test -p gybe-referees")
    });
    netns.run(work).unwrap()
}

/// Returns the table as the `nft` program lists it, with numbers instead of names.
#[expect(clippy::disallowed_methods, reason = "the nft program is one of the readers")]
pub(crate) fn nft_list() -> String {
    let nft = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft"]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists());
    let nft = nft.expect("no nft program: integration/setup.sh installs it");
    let output = Command::new(nft).args(["--numeric", "list", "table", "inet", "gybe"]).output().unwrap();
    assert!(output.status.success(), "nft list: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
