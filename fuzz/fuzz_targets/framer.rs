//! `cargo +nightly fuzz run framer`: see `testing::fuzz::framer`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    testing::fuzz::framer(data);
});
