//! `cargo +nightly fuzz run log_reader`: see `testing::fuzz::log_reader`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    testing::fuzz::log_reader(data);
});
