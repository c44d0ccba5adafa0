//! Commands that fail, are interrupted or are killed while they create and load: the next one finds a way.
