//! The fuzz targets on the stable compiler: their saved corpus, and a bounded number of seeded mutations of it.
//!
//! The targets themselves are in `fuzz/` and need `cargo fuzz`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use testing::fuzz;
use testing::rng::Rng;

const MUTATIONS: u64 = 200_000;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a member of the corpus").path())
        .collect();
    names.sort();
    names.iter().map(|name| std::fs::read(name).expect("a readable member of the corpus")).collect()
}

#[track_caller]
fn run(target: &str, function: fn(&[u8]) -> bool) {
    let seed = std::env::var("FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let corpus = corpus(target);
    assert!(corpus.len() >= 8, "the corpus of {target} has only {} members", corpus.len());
    for input in &corpus {
        function(input);
    }
    let mut rng = Rng::new(seed);
    let mut understood = 0;
    for number in 0..MUTATIONS {
        let mut input = rng.pick(&corpus).clone();
        let other = rng.pick(&corpus);
        fuzz::mutate(&mut rng, &mut input, other);
        match catch_unwind(AssertUnwindSafe(|| function(&input))) {
            Ok(is_understood) => understood += u64::from(is_understood),
            Err(panic) => {
                eprintln!("FUZZ_SEED={seed}, mutation {number}: {}", input.escape_ascii());
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{target}: {} members of the corpus, {MUTATIONS} mutations, {understood} understood", corpus.len());
    // Inputs that are all refused at the first byte, or all valid, would show little.
    assert!((MUTATIONS / 20..MUTATIONS).contains(&understood), "{understood} of {MUTATIONS} were understood");
}

#[test]
fn the_framer_finds_the_same_commands_in_any_segmentation() {
    run("framer", fuzz::framer);
}

#[test]
fn the_log_reader_refuses_or_understands_any_bytes() {
    run("log_reader", fuzz::log_reader);
}
