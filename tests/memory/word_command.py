"""The command line with the tests' embedder instead of MiniLM, for processes that tests kill."""

from conftest import WordEmbedder

from midthought.cli import main
from midthought.memory import embedding

if __name__ == "__main__":
    embedding.load_embedder = lambda name: WordEmbedder()
    main()
