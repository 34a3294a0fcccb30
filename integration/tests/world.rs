//! The recorded network itself: with no rules, every connection ends where it was recorded to end.

use gybe_integration::complaint::Complaint;
use gybe_integration::run::{Rules, Until, differences};
use gybe_integration::topology::Topology;
use gybe_integration::vectors;
use gybe_netfilter::policy::Mode;

#[test]
fn without_rules_every_flow_goes_where_it_was_recorded_to_go() -> Result<(), Complaint> {
    let recorded = vectors::without_rules()?;
    for vector in vectors::all()? {
        for flow in &vector.flows {
            assert_eq!(recorded.get(&flow.id), Some(&flow.without_rules), "{} {}", vector.name, flow.id);
        }
    }
    let flows = vectors::all()?.remove(0).flows;
    // Nobody's rules are there, so all policies share this one control; only the proxy's user differs.
    for mode in [Mode::Redirect, Mode::Tproxy { mark: 1337, route_table: 133 }] {
        let world = Topology::raise(mode, &flows)?;
        let found = differences(&world, &flows, Rules::NotThere, Until::TheEnd)?;
        assert!(found.is_empty(), "{mode:?}: {} flows: {found:#?}", found.len());
    }
    Ok(())
}
