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

use node::{EntryShape, Primary};

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
    ($($module:ident: $primary:expr, $shape:expr;)*) => {
        $(mod $module {
            use super::*;

            #[test]
            fn boots_in_both_orders() {
                boots::in_both_orders(&$primary, $shape);
            }

            #[test]
            fn restarts_and_removal() {
                life::restarts_and_removal(&$primary, $shape);
            }
        })*
    };
}

for_each_primary! {
    kindnet_chained: KINDNET, EntryShape::Chained;
    kindnet_dropin: KINDNET, EntryShape::DropIn;
    flannel_chained: FLANNEL, EntryShape::Chained;
    flannel_dropin: FLANNEL, EntryShape::DropIn;
    flannel_auto: FLANNEL, EntryShape::Auto;
    multus_chained: MULTUS, EntryShape::Chained;
    calico_chained: CALICO, EntryShape::Chained;
    calico_dropin: CALICO, EntryShape::DropIn;
    cilium_shared_chained: CILIUM_SHARED, EntryShape::Chained;
    cilium_dropin: CILIUM, EntryShape::DropIn;
    cilium_auto: CILIUM, EntryShape::Auto;
}
