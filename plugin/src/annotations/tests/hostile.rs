//! Values written to be misread, and oversized values.

use super::*;

/// The text of a value is not kept, so it cannot be used later.
#[test]
fn a02_values_that_parse_alike_are_equal() {
    for (annotation, written, read) in [
        (EXCLUDE_INBOUND, " 80 ,\t81, 80\n", "80,81"),
        (INCLUDE_INBOUND, "82,80-81 , 80", "80-82"),
        (EXCLUDE_OUTBOUND, "\n22\n", "22"),
        (INCLUDE_OUTBOUND, "8000-8050,8051-8100", "8000-8100"),
        (INCLUDE_TO, "10.1.2.3/8 , 10.0.0.0/8", "10.0.0.0/8"),
        (EXCLUDE_TO, "FD00:0::1/8", "fd00::/8"),
        (EXCLUDE_INTERFACES, " eth0 , eth0", "eth0"),
    ] {
        let parsed = |value| traffic_of(&pod(&[(annotation, value)])).unwrap();
        assert_eq!(parsed(written), parsed(read), "{annotation}: {written:?}");
        assert!(!format!("{:?}", parsed(written)).contains(written), "{annotation}: {written:?}");
    }
}

#[test]
fn a09_an_invalid_item_is_quoted_escaped_and_truncated() {
    for value in ["9".repeat(200_000), format!("{}80", "0".repeat(200_000)), "\u{1b}[31m".repeat(90_000)] {
        let text = traffic_of(&pod(&[(EXCLUDE_INBOUND, &value)])).unwrap_err().to_string();
        assert!(text.len() < 400 && !text.contains('\u{1b}'), "{text}");
    }
}

#[test]
fn a03_a_list_is_bounded_by_its_number_of_intervals() {
    let scattered = |n: u32| (0..n).map(|i| (i * 2).to_string()).collect::<Vec<_>>().join(",");
    let dense = (0..=65535).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
    let subnets =
        |n: u32| (0..n).map(|i| format!("10.{}.{}.0/25", i / 256, i % 256)).collect::<Vec<_>>().join(",");
    for (annotation, value, works) in [
        (EXCLUDE_OUTBOUND, scattered(4096), true),
        (EXCLUDE_OUTBOUND, scattered(4097), false),
        (EXCLUDE_OUTBOUND, dense, true),
        (EXCLUDE_TO, subnets(4096), true),
        (EXCLUDE_TO, subnets(4097), false),
    ] {
        assert_eq!(traffic_of(&pod(&[(annotation, &value)])).is_ok(), works, "{annotation} {}", value.len());
    }
}

#[test]
fn a03_max_intervals_is_configurable() {
    let conf = |max: u32| {
        let entry = serde_json::json!({ "max_intervals": max });
        crate::conf::PluginConf::read(entry.as_object().unwrap()).unwrap().max_intervals
    };
    let value = pod(&[(EXCLUDE_OUTBOUND, "80,82,84-90")]);
    assert!(traffic(&value, conf(3)).is_ok());
    let text = traffic(&value, conf(2)).unwrap_err().to_string();
    assert!(text.contains("3 items, where at most 2 are allowed (the operator's max_intervals)"), "{text}");
}

/// The CPU time of this thread, which a busy machine does not change.
fn cpu_milliseconds(work: impl FnOnce()) -> i64 {
    let spent = || nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    let before = spent();
    work();
    nix::sys::time::TimeValLike::num_milliseconds(&(spent() - before))
}

#[test]
fn a03_a_list_of_250_kilobytes_is_parsed_and_merged_within_milliseconds() {
    // Unoptimized code is about ten times slower.
    let most = if cfg!(debug_assertions) { 150 } else { 10 };
    let every: Vec<_> = (1..=45_000).map(|port| port.to_string()).collect();
    let every = every.join(",");
    assert!(every.len() > 250_000);
    let networks: Vec<_> = (0..18_000).map(|i| format!("10.{}.{}.0/24", i / 256 % 256, i % 256)).collect();
    let networks = networks.join(",");
    let cpu = cpu_milliseconds(|| assert_eq!(lists::ports(&every, 4096).unwrap().ranges().len(), 1));
    assert!(cpu <= most, "ports: {cpu} ms");
    let cpu = cpu_milliseconds(|| assert!(lists::networks(&networks, 4096).unwrap().v4().len() < 100));
    assert!(cpu <= most, "networks: {cpu} ms");
    let scattered: Vec<_> = (0..32_768).map(|i| (2 * i).to_string()).collect();
    let cpu = cpu_milliseconds(|| assert!(lists::ports(&scattered.join(","), 4096).is_err()));
    assert!(cpu <= most, "scattered: {cpu} ms");
}
