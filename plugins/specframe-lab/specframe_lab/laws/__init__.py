"""Laws of speculative decoding, fitted to runs: acceptance by a draft's training and depth, the best budget by batch size."""
