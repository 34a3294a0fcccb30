//! Primary CNI plugins with their agents and Gybe's on a node with containerd: boots in both orders, restarts, removal.
//! Needs root and the programs of `setup.sh`:  make -C integration primaries

#![allow(clippy::print_stdout, reason = "the tests print what they measured")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]

mod boots;
mod life;
mod node;

use node::Primary;

const KINDNET: Primary =
    Primary { name: "kindnet", file: "10-kindnet.conflist", needs: &[], exclusive: false };
const FLANNEL: Primary = Primary {
    name: "flannel",
    file: "10-flannel.conflist",
    needs: &["flanneld", "flannel"],
    exclusive: false,
};
/// Without a drop-in: with flannel's CNI version it writes a `.conf`, for which libcni reads none.
const MULTUS: Primary = Primary {
    name: "multus",
    file: "00-multus.conf",
    needs: &["flanneld", "flannel", "multus", "thin_entrypoint"],
    exclusive: false,
};
const CALICO: Primary = Primary { name: "calico", file: "10-calico.conflist", needs: &[], exclusive: false };
const CILIUM: Primary =
    Primary { name: "cilium", file: "05-cilium.conflist", needs: &["cilium-conf"], exclusive: true };
/// With `cni.exclusive=false`, the setting that Gybe's entry in the conf file needs.
const CILIUM_SHARED: Primary = Primary { exclusive: false, ..CILIUM };

macro_rules! for_each_primary {
    ($($module:ident: $primary:expr, $chained:expr;)*) => {
        $(mod $module {
            use super::*;

            #[test]
            fn boots_in_both_orders() {
                boots::in_both_orders(&$primary, $chained);
            }

            #[test]
            fn restarts_and_removal() {
                life::restarts_and_removal(&$primary, $chained);
            }
        })*
    };
}

for_each_primary! {
    kindnet_chained: KINDNET, true;
    kindnet_dropin: KINDNET, false;
    flannel_chained: FLANNEL, true;
    flannel_dropin: FLANNEL, false;
    multus_chained: MULTUS, true;
    calico_chained: CALICO, true;
    calico_dropin: CALICO, false;
    cilium_shared_chained: CILIUM_SHARED, true;
    cilium_dropin: CILIUM, false;
}
