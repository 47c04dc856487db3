//! The known name that was probably meant.

/// The candidate with the fewest typing mistakes, if they are few for the length of the word.
pub(crate) fn nearest<'a>(word: &str, candidates: Vec<&'a str>) -> Option<&'a str> {
    let mistakes_max = 1.max(word.len() / 3);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(mistakes, _)| *mistakes <= mistakes_max)
        .min_by_key(|(mistakes, _)| *mistakes)
        .map(|(_, candidate)| candidate)
}
