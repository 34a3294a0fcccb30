//! Ours and the referees' rules, each in a namespace of its own, and the kernel to judge.

mod dump;
mod libnftnl;
mod listing;
mod namespace;
mod policies;
mod with_nftnl;
mod with_rustables;
mod words;

use listing::Listing;
use with_rustables::Inexpressible;

#[test]
fn draft() {
    let mut ok = 0;
    for case in policies::vectors().into_iter().chain(policies::edges()) {
        let bytes = with_nftnl::batch(&case.rules);
        let (list, text) = namespace::of_its_own(|| {
            namespace::commit(&bytes)
                .map(|()| (Listing::here(), namespace::nft_list()))
                .unwrap_or_else(|e| panic!("{}: {e}", case.name))
        });
        match with_rustables::batch(&case.rules) {
            Err(why) => println!("{}: {why}", case.name),
            Ok(bytes) => {
                ok += 1;
                let (l2, t2) = namespace::of_its_own(|| {
                    namespace::commit(&bytes)
                        .map(|()| (Listing::here(), namespace::nft_list()))
                        .unwrap_or_else(|e| panic!("rustables {}: {e}", case.name))
                });
                let d = list.differences(&l2, ["nftnl", "rustables"]);
                assert!(d.is_empty(), "{}: {d}", case.name);
                assert_eq!(text, t2);
            }
        }
        if case.name == "dns-all-tproxy-dual" {
            println!("{text}");
        }
    }
    println!("rustables {ok}");
}
