//! The recorded network itself: with no rules, every connection ends where it was recorded to end.

use gybe_integration::run::{Rules, differences};
use gybe_integration::topology::Topology;
use gybe_integration::vectors;
use gybe_netfilter::policy::Mode;
use std::time::Instant;

#[test]
fn with_no_rules_every_flow_goes_where_it_was_recorded_to_go() {
    let vectors = vectors::all().unwrap();
    let t = Instant::now();
    let flows = &vectors[0].flows;
    let world = Topology::raise(Mode::Redirect, flows).unwrap();
    println!("up {:?}", t.elapsed());
    let found = differences(&world, flows, Rules::NotThere).unwrap();
    println!("run {:?}", t.elapsed());
    drop(world);
    println!("down {:?}", t.elapsed());
    for difference in &found {
        println!("{difference}");
    }
    assert!(found.is_empty());
}
